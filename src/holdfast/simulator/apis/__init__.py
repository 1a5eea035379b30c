"""The APIs the simulator speaks: each reads a call, checks it as its original does, and answers."""
