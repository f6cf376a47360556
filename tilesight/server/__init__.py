"""The server: pages of a database and of dispatch tables, for the browser of this machine, only to be read"""
