"""Default models of the package, ``DETECTOR/model.bin`` and ``DETECTOR/card.json``; ``pipeline.lab.registry`` reads them."""
