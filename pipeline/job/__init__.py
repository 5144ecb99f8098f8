"""What is known of one job: its dependency graph, facts about ranks and hosts, layout, and who may speak of whom."""
