"""Which session the messages of a chat belong to, even after the chat's id changed."""
