"""The learned cost model: boosted trees that correct the analytical one."""
