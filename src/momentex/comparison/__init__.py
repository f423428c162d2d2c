"""The instrument: arms over paired seeds, and what their differences say."""
