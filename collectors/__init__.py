"""What runs on a training host.

Nothing is imported here: ``tocsin.collectors.hook`` lives in the training process and must cost it nothing.
"""
