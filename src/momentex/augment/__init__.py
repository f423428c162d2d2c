"""Input space: what is done to a batch of images and its targets before the model sees them. This file needs no torch.

| file | method |
| --- | --- |
| `values` | what is asked for, as frozen values that need no torch: `Mixup`, `CutMix`, `Cutout`, `LabelInterpolation` |
| `mixup` | images are averaged, and so are their targets |
| `cutmix` | a box of the partner is pasted, and targets are mixed by its area |
| `cutout` | a square is set to zero |
| `label_interpolation` | targets are mixed, and images are not: the control |
| `label_smoothing` | a part of each target is spread over the classes, in both published forms |

Every method takes `(x, targets)` and returns them: x is not written to unless asked, and `Targets` composes targets. So
methods stack in any order, with each other and with Moment Exchange.
"""
