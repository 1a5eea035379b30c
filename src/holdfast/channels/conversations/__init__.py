"""Which session the messages of a chat belong to, also after the chat got another id."""
