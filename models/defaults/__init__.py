"""The models that ship with the program: DETECTOR/model.bin and DETECTOR/card.json, read by ``pipeline.registry``."""
