"""Ports for servers of a test."""

import socket


def free_port(host="127.0.0.1"):
    """Returns a port that is free now. Another process may take it before it is used."""
    with socket.socket() as one:
        one.bind((host, 0))
        return one.getsockname()[1]
