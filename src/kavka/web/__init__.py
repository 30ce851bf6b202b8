"""HTTP listeners: the connection limits that all of them share, and two kinds of servers."""
