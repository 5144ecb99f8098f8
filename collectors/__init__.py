"""Everything that runs on a training host.

This module imports nothing, because ``tocsin.collectors.hook`` runs in the training process and must cost it nothing.
"""
