"""The console for the state folder of one machine: `rankmend console`."""
