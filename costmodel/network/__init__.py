"""Networks between devices: the times of transfers and collectives, from the network of a target."""
