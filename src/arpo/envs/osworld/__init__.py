"""OSWorld itself, in Docker containers and through its own client: `make("osworld", …)`, see env.py."""
