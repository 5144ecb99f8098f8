"""Files that let a restarted embedded engine give the same verdicts: snapshots, a journal, and a crash mark.

They are the files of one folder, locked by one engine; no database and no sockets are used here.
"""
