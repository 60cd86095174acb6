"""The parts that a session is composed of; each is given the host, through which it finds the others."""
