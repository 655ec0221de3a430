"""The terminal dashboard `hivemind top`: a feed of reports, one pure picture of them, and a live screen around it."""
