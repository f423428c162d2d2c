"""The oracle: Algorithm 1 of the paper, the authors' CutMix + MoEx loss, and moments by hand, group by group.

Nothing here comes from momentex. `moex`, `interpolate_loss` and `normalization` are the listing of the paper's
appendix; the one change is that the permutation is handed in instead of drawn.
"""

import torch
from torch import Tensor

# --- Algorithm 1 -----------------------------------------------------------------------------------------------------
# x: a batch of features of shape (batch_size, channels, height, width),
# y: onehot labels of shape (batch_size, n_classes)
# norm_type: type of the normalization to use


def moex(x, y, norm_type, ex_index):
    x, mean, std = normalization(x, norm_type)
    x = x * std[ex_index] + mean[ex_index]
    y_b = y[ex_index]
    return x, y, y_b


# output: model output
# y: original labels
# y_b: labels of moments
# loss_func: loss function used originally
# lam: interpolation weight λ
def interpolate_loss(output, y, y_b, loss_func, lam):
    return lam * loss_func(output, y) + (1.0 - lam) * loss_func(output, y_b)


def normalization(x, norm_type, epsilon=1e-5):
    # decide how to compute the moments
    if norm_type == "pono":
        norm_dims = [1]
    elif norm_type == "instance_norm":
        norm_dims = [2, 3]
    else:  # layer norm
        norm_dims = [1, 2, 3]
    # compute the moments
    mean = x.mean(dim=norm_dims, keepdim=True)
    var = x.var(dim=norm_dims, keepdim=True)
    std = (var + epsilon).sqrt()
    # normalize the features, i.e., remove the moments
    x = (x - mean) / std
    return x, mean, std


# --- CutMix + MoEx, as the authors run it ----------------------------------------------------------------------------
# One permutation for both: the patch and the moments come from the same partner, whose moments are those of an image
# that has a patch itself. Hence three labels: y, y[π] and y[π∘π].


def cutmix_moex_loss(output, y, ex_index, loss_func, lam_cutmix, lam_moex):
    own = lam_cutmix * lam_moex
    partner = (1 - lam_cutmix) * lam_moex + lam_cutmix * (1 - lam_moex)
    partners_partner = (1 - lam_cutmix) * (1 - lam_moex)
    return (
        own * loss_func(output, y)
        + partner * loss_func(output, y[ex_index])
        + partners_partner * loss_func(output, y[ex_index][ex_index])
    )


# --- input space, by hand: one image and one pixel at a time ----------------------------------------------------------


def mixup(x, index, lam):
    """`lam`: one for each image."""
    rows = [lam[i] * x[i] + (1 - lam[i]) * x[j] for i, j in enumerate(index.tolist())]
    return torch.stack(rows)


def cutmix_box(lam, height, width, row, column):
    """CutMix, supplement: sides r · sqrt(1 − λ), around (row, column), cut at the border."""
    ratio = (1 - lam) ** 0.5
    tall, wide = int(height * ratio), int(width * ratio)
    top, bottom = max(row - tall // 2, 0), min(row + tall // 2, height)
    left, right = max(column - wide // 2, 0), min(column + wide // 2, width)
    return top, bottom, left, right


def within(box, row, column):
    top, bottom, left, right = box
    return top <= row < bottom and left <= column < right


def cutmix(x, index, boxes):
    """The images, and λ of each: the share of pixels that are its own. `boxes`: one for each image."""
    mixed, height, width = x.clone(), x.shape[-2], x.shape[-1]
    lam = torch.ones(len(x), dtype=torch.float64)
    for i, j in enumerate(index.tolist()):
        for row in range(height):
            for column in range(width):
                if within(boxes[i], row, column):
                    mixed[i, ..., row, column] = x[j, ..., row, column]
                    lam[i] -= 1 / (height * width)
    return mixed, lam


def cutout(x, boxes):
    left = x.clone()
    for i, box in enumerate(boxes):
        for row in range(x.shape[-2]):
            for column in range(x.shape[-1]):
                if within(box, row, column):
                    left[i, ..., row, column] = 0
    return left


def smoothed_over_others(losses, y, lam):
    """The paper's ablation: λ ℓ(x, y) + (1 − λ)/(C − 1) Σ_{y' ≠ y} ℓ(x, y'). `losses` (batch, C): ℓ of every class."""
    classes = losses.shape[1]
    rows = []
    for i, own in enumerate(y.tolist()):
        others = sum(losses[i, c] for c in range(classes) if c != own)
        rows.append(lam * losses[i, own] + (1 - lam) / (classes - 1) * others)
    return torch.stack(rows)


# --- moments by hand -------------------------------------------------------------------------------------------------
# What a sample is made of is said by places in the flattened features: a list of samples, each a list of groups.


def places_of(shape, over_channels, over_space, groups, mask=None, batch=None, samples=None):
    """For each sample, for each group of elements that share moments: their places in the flattened features."""
    index = torch.arange(torch.Size(shape).numel()).view(shape)
    channels, found = shape[1], []
    each = channels // groups if over_channels else 1
    for i in range(shape[0] if batch is None else samples):
        rows = index[batch == i].T if batch is not None else index[i].reshape(channels, -1)  # (channels, positions)
        if mask is not None:
            rows = rows[:, mask[i].flatten()]
        blocks = rows.split(each)
        if over_space:
            found.append([block.flatten() for block in blocks])
        else:
            found.append([block[:, position] for block in blocks for position in range(rows.shape[1])])
    return found


def moments_of(values: Tensor, centred=True, eps=1e-5, correction=1) -> tuple[Tensor, Tensor]:
    n = len(values)
    if not centred:
        return torch.zeros_like(values.sum()), (values.square().sum() / n + eps).sqrt()
    mean = values.sum() / n
    return mean, ((values - mean).square().sum() / (n - correction) + eps).sqrt()


def exchange(x, index, places, only=None, centred=True, eps=1e-5, correction=1, sits_out=()):
    """h_A^(B), group by group; samples in `sits_out` neither give nor receive, everything else stays as it is."""
    flat, new = x.flatten(), x.flatten().clone()
    for a, b in enumerate(index.tolist()):
        if a == b or a in sits_out or b in sits_out:
            continue
        for of_a, of_b in zip(places[a], places[b], strict=True):
            mean_a, std_a = moments_of(flat[of_a], centred, eps, correction)
            mean_b, std_b = moments_of(flat[of_b], centred, eps, correction)
            if only == "mean":
                values = flat[of_a] - mean_a + mean_b
            elif only == "std":
                values = std_b * (flat[of_a] - mean_a) / std_a + mean_a
            else:
                values = std_b * (flat[of_a] - mean_a) / std_a + mean_b
            new = new.index_put((of_a,), values)
    return new.view(x.shape)
