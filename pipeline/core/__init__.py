"""What every operator stands on: the operator protocol, arrays, slices, blocks of frames."""
