"""HTTP listeners: connection limits, a uvicorn server, and a listener for read-only pages."""
