"""What commands work out from stored datasets: orders, labels and packed rows."""
