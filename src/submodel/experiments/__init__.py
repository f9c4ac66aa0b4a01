"""Many runs, their records and budgets, what they show. May import federation and below."""
