//! Attribution and cost. Neither files nor the kernel are read here.
