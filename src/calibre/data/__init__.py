"""Images, who holds which of them, and how a batch of them becomes two views."""
