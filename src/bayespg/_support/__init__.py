"""What every part of the package stands on: types, checks, precision, files, threads."""
