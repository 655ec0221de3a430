"""A new user: an empty house with the wheel in it, what README and docs/start.md tell to type, and what is seen then."""
