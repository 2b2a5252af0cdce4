"""The built-in suites, one file each. They use the same public interface as your own."""
