"""Methods on features beside Moment Exchange: at layers, and on the branches of residual models.

| module | what it holds |
| --- | --- |
| `manifold_mixup` | `ManifoldMixup`, attached as Moment Exchange is; `manifold_mixup`, the operation |
| `dropblock` | `DropBlock`, attached to the outputs of layers; `drop_block`, the operation |
| `shakedrop` | `ShakeDrop`, a module for the branch of one block; `shake_drop`, the operation |
| `stochastic_depth` | `StochasticDepth`, likewise; `stochastic_depth`, the operation |
| `branch` | what makes such modules for all blocks of a model: `LinearDecay` |
"""
