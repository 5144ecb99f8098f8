"""What each source tells of a job: exits, silence, collectives, dumps, hardware events, lost numbers."""
