"""What an embedded engine keeps on disk so that a restart changes no verdict: snapshots, a journal, a mark.

No database and no sockets here: files of one folder, and who may write them.
"""
