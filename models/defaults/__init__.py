"""Default models of the package, in ``DETECTOR/model.bin`` and ``DETECTOR/card.json``.

``pipeline.lab.registry`` reads them.
"""
