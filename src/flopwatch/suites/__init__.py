"""The built-in suites, one file each. They use the same public interface as a user's own."""
