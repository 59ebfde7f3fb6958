"""What happens at one client: its data, its batches and the one training loop."""
