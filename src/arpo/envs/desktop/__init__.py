"""Real Linux applications on private desktops: namespaces, an X server in memory, no virtual machine."""
