"""Each client's own model, made from the global one."""
