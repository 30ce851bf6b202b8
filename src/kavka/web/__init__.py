"""HTTP listeners: the limits on connections that all of them share, and the two kinds of servers behind them."""
