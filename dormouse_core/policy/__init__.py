"""The network: one weight-shared block run T times over bytes. Equations, shapes and presets: docs/policy.md."""
