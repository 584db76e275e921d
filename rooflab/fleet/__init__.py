"""The same plan on many devices: members that measure, and a coordinator that writes."""
