"""Targets: a convex combination of label tensors, and the loss that asks for all of them.

One class serves every method that mixes: MoEx, label interpolation, mixup, CutMix, manifold mixup and any composition.
λ is always the weight of the sample itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_leaves

from momentex.errors import OutOfRange, PairingError, ShapeError, TargetError, check_fraction
from momentex.pairing import check_index, looks_are_free

Weight = float | Tensor  # a number, or one for each sample


class Term(NamedTuple):
    """Labels and how much they count."""

    labels: Tensor
    weight: Weight


class Targets:
    """Labels with weights that sum to one for each sample: Σ_k w_k · labels_k.

    Labels may be class indices `(batch,)`, token sequences or dense maps of indices `(batch, …)`, soft or multi-hot
    rows, real numbers: whatever the criterion takes; their first axis is the batch.

    >>> y = torch.tensor([0, 1])
    >>> Targets(y).mixed_with(torch.tensor([1, 0]), lam=0.75).probabilities(num_classes=2)
    tensor([[0.7500, 0.2500],
            [0.2500, 0.7500]])
    """

    labels: Tensor  # of the samples themselves
    terms: tuple[Term, ...]

    def __init__(self, labels: Tensor) -> None:
        if not isinstance(labels, Tensor) or labels.ndim == 0:
            given = "a number" if isinstance(labels, Tensor) else f"a {type(labels).__name__}"
            raise TargetError(f"labels are {given}; they must be a tensor whose first axis is the batch.")
        self.labels, self.terms = labels, (Term(labels, 1.0),)
        self._on_use: tuple[Callable[[Tensor], None], ...] = ()

    def __len__(self) -> int:
        return self.labels.shape[0]

    def __repr__(self) -> str:
        parts = (f"{_show(w)} · {t.dtype} {tuple(t.shape)}" for t, w in self.terms)
        return f"Targets({' + '.join(parts)})"

    def mixed_with(self, index: Tensor, lam: float | Tensor) -> Targets:
        """t_i ← λ t_i + (1 − λ) t_index[i], exactly, whatever was mixed before (Sec. 3). λ: a number or (batch,).

        >>> twice = Targets(torch.tensor([0, 1, 2])).mixed_with(torch.tensor([1, 2, 0]), 0.5)
        >>> twice.mixed_with(torch.tensor([1, 2, 0]), 0.5).probabilities(3)[0]
        tensor([0.2500, 0.5000, 0.2500])
        """
        check_index(index)
        if len(index) != len(self):
            raise PairingError(f"index has {len(index)} entries for {len(self)} labels; it needs one for each.")
        return self.mixed_as_checked(index, checked_lam(lam, len(self)))

    def mixed_as_checked(self, index: Tensor, lam: Weight) -> Targets:
        """`mixed_with` for methods that have looked at both before they touched the images."""
        if isinstance(lam, float) and lam == 1.0:
            return self
        own = [Term(t, _times(lam, w)) for t, w in self.terms]
        partners = [Term(_pick(t, index), _times(_complement(lam), _pick(w, index))) for t, w in self.terms]
        return self._with_terms(partners if isinstance(lam, float) and lam == 0.0 else own + partners)

    def smoothed(self, amount: float | Tensor, num_classes: int) -> Targets:
        """t_i ← (1 − a) t_i + a/C for each of the C classes, whatever was mixed before. a: a number or (batch,).

        Labels that a criterion ignores are smoothed too; for those, `cross_entropy(label_smoothing=a)`.

        >>> Targets(torch.tensor([0])).smoothed(0.1, num_classes=2).probabilities(2)
        tensor([[0.9500, 0.0500]])
        """
        amount = checked_lam(amount, len(self), "smoothing")
        if isinstance(amount, float) and amount == 0.0:
            return self
        if any(not _has_classes(labels, num_classes) for labels, _ in self.terms):
            given = ", ".join(f"{labels.dtype} {tuple(labels.shape)}" for labels, _ in self.terms)
            raise TargetError(
                f"labels are {given}: smoothing over {num_classes} classes needs class indices, or soft rows (batch, "
                f"{num_classes})."
            )
        labels = self.labels
        rows = labels.is_floating_point() or labels.dtype == torch.bool
        space = labels.shape[2:] if rows else labels.shape[1:]
        even = torch.full((), 1 / num_classes, device=labels.device).expand(len(self), num_classes, *space)
        kept = [Term(t, _times(_complement(amount), w)) for t, w in self.terms]
        return self._with_terms([*kept, Term(even, amount)])

    def loss(self, criterion: Callable[..., Tensor], output: Any, **arguments: Any) -> Tensor:
        """Σ_k w_k · criterion(output, labels_k, **arguments): the paper's λ ℓ(h, y_A) + (1 − λ) ℓ(h, y_B).

        What the criterion returns is weighted and returned, one number or one for each sample. With a λ for each
        sample it must be one for each sample (`reduction="none"`): a mean cannot be weighted any more.

        >>> targets = Targets(torch.tensor([0.0, 10.0])).mixed_with(torch.tensor([1, 0]), 0.9)
        >>> targets.loss(F.mse_loss, torch.zeros(2))
        tensor(50.)
        """
        self._use(output)
        total: Tensor | None = None
        for labels, weight in self.terms:
            value = criterion(output, labels, **arguments)
            if isinstance(weight, Tensor):
                value = value * _for_samples(weight, value, len(self))
            elif weight != 1.0:
                value = value * weight
            total = value if total is None else total + value
        assert total is not None
        return total

    def cross_entropy(
        self,
        logits: Tensor,
        *,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: Literal["mean", "sum", "none"] = "mean",
        label_smoothing: float = 0.0,
    ) -> Tensor:
        """`loss(F.cross_entropy, logits, …)` with one log-softmax, whatever the number of terms.

        Every term is reduced as torch reduces it: with class weights or ignored labels, "mean" divides each term by
        what counts in that term. A λ for each sample needs no `reduction="none"` here.

        >>> targets = Targets(torch.tensor([0, 1])).mixed_with(torch.tensor([1, 0]), 0.9)
        >>> logits = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
        >>> torch.allclose(targets.cross_entropy(logits), targets.loss(F.cross_entropy, logits))
        True
        """
        if reduction not in ("mean", "sum", "none"):
            raise TargetError(f"reduction is {reduction!r}; it is 'mean', 'sum' or 'none'.")
        self._use(logits)
        log_p = logits.log_softmax(1, dtype=torch.float32 if logits.dtype in _HALVES else None)
        weight = None if weight is None else weight.to(log_p.dtype)
        options = (weight, ignore_index, check_fraction("label_smoothing", label_smoothing), reduction)
        total: Tensor | None = None
        for term in self.terms:
            value = _cross_entropy_term(log_p, term, *options)
            total = _plus(total, value, 1.0 if isinstance(term.weight, Tensor) else term.weight)
        assert total is not None
        return total

    def probabilities(self, num_classes: int) -> Tensor:
        """The combination as one tensor with a class axis at 1: for criteria that take soft targets.

        Floats and truth values are rows over the classes already (soft, multi-hot); whole numbers are class indices.
        """
        total: Tensor | None = None
        for labels, weight in self.terms:
            rows = _one_hot(labels, num_classes)
            rows = rows * (_for_samples(weight, rows, len(self)) if isinstance(weight, Tensor) else weight)
            total = rows if total is None else total + rows
        assert total is not None
        return total

    def accuracy(self, output: Tensor, top: int = 1) -> Tensor:
        """Σ_k w_k · [labels_k among the `top` largest], averaged: 1 is out of reach where two labels are asked for.

        >>> targets = Targets(torch.tensor([0, 1])).mixed_with(torch.tensor([1, 0]), 0.9)
        >>> targets.accuracy(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
        tensor(0.9000)
        """
        best = output.topk(top, dim=1).indices
        total = torch.zeros((), device=output.device)
        for labels, weight in self.terms:
            even: Tensor | None = None
            if labels.ndim == output.ndim and labels.is_floating_point():
                even = labels.amax(1) == labels.amin(1)  # smoothing: as good as any class
                labels = labels.argmax(1)
            if labels.is_floating_point() or labels.ndim != output.ndim - 1:
                raise TargetError(
                    f"accuracy needs class indices or soft rows; labels are {labels.dtype} {tuple(labels.shape)} for "
                    f"output {tuple(output.shape)}."
                )
            hits = (best == labels.unsqueeze(1)).any(1).float()
            if even is not None:
                hits = hits.masked_fill(even, top / output.shape[1])
            total = (
                total
                + (hits * (_for_samples(weight, hits, len(self)) if isinstance(weight, Tensor) else weight)).mean()
            )
        return total

    def when_used(self, callback: Callable[[Tensor], None]) -> Targets:
        """These targets; `callback` is called with each tensor of a graph whose loss they are asked for."""
        watched = self._with_terms(self.terms)
        watched._on_use = (*self._on_use, callback)
        return watched

    def _with_terms(self, terms: tuple[Term, ...] | list[Term]) -> Targets:
        new = Targets.__new__(Targets)
        new.labels, new.terms, new._on_use = self.labels, tuple(terms), self._on_use
        return new

    def _use(self, output: Any) -> None:
        if not self._on_use or torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
            return
        for tensor in tree_leaves(output):
            if isinstance(tensor, Tensor) and tensor.grad_fn is not None:
                for callback in self._on_use:
                    callback(tensor)


_HALVES = (torch.float16, torch.bfloat16)


def _cross_entropy_term(
    log_p: Tensor, term: Term, class_weight: Tensor | None, ignore_index: int, smoothing: float, reduction: str
) -> Tensor:
    """Reduced, and weighted if there is a λ for each sample, which cannot be done later."""
    labels, weight = term
    soft_rows = labels.is_floating_point()
    if not (soft_rows or smoothing or isinstance(weight, Tensor)):  # torch's own reduction: most steps, in fewest calls
        return F.nll_loss(log_p, labels, weight=class_weight, ignore_index=ignore_index, reduction=reduction)
    if soft_rows:
        if labels.shape != log_p.shape:
            raise ShapeError(
                f"labels are {labels.dtype} {tuple(labels.shape)} for logits {tuple(log_p.shape)}: soft labels must "
                "have the shape of the logits, and class indices must be whole numbers."
            )
        soft = labels * (1 - smoothing) + smoothing / log_p.shape[1]
        scaled = log_p if class_weight is None else log_p * _along_classes(class_weight, log_p)
        losses = -(soft * scaled).sum(1)
        count = losses.new_full((), losses.numel())
    else:
        losses = F.nll_loss(log_p, labels, weight=class_weight, ignore_index=ignore_index, reduction="none")
        valid = labels != ignore_index
        if smoothing:
            scaled = log_p if class_weight is None else log_p * _along_classes(class_weight, log_p)
            spread = -scaled.sum(1).masked_fill(~valid, 0) / log_p.shape[1]
            losses = losses * (1 - smoothing) + spread * smoothing
        counted = valid if class_weight is None else class_weight[labels.where(valid, 0).long()] * valid
        count = counted.sum()
    if isinstance(weight, Tensor):
        losses = losses * _for_samples(weight, losses, len(labels))
    if reduction == "none":
        return losses
    return losses.sum() if reduction == "sum" else losses.sum() / count.to(losses.device)


def _plus(total: Tensor | None, value: Tensor, weight: float) -> Tensor:
    """total + weight · value."""
    if total is None:
        return value if weight == 1.0 else value * weight
    if torch.compiler.is_compiling():
        return total + value * weight  # of `alpha` compilers make a constant, and so a graph for each λ
    return total.add(value, alpha=weight)


def _along_classes(class_weight: Tensor, logits: Tensor) -> Tensor:
    return class_weight.view(1, -1, *[1] * (logits.ndim - 2))


def _one_hot(labels: Tensor, num_classes: int) -> Tensor:
    if labels.is_floating_point() or labels.dtype == torch.bool:
        if labels.ndim < 2 or labels.shape[1] != num_classes:
            raise TargetError(
                f"labels {labels.dtype} {tuple(labels.shape)} are no probabilities over {num_classes} classes; use "
                "loss(criterion, output), which combines losses instead of labels."
            )
        return labels if labels.is_floating_point() else labels.to(torch.get_default_dtype())
    look = labels.numel() and looks_are_free(labels)
    low, high = (int(labels.min()), int(labels.max())) if look else (0, 0)
    if low < 0 or high >= num_classes:
        raise TargetError(
            f"labels are {low} to {high}, and probabilities need 0 to {num_classes - 1}: {num_classes} classes."
        )
    return F.one_hot(labels.long(), num_classes).movedim(-1, 1).to(torch.get_default_dtype())


def checked_lam(lam: float | Tensor, size: int, name: str = "lam") -> Weight:
    """λ as a number in [0, 1] or one for each of `size` samples."""
    if not isinstance(lam, Tensor):
        return check_fraction(name, lam)
    if lam.shape != (size,) or not lam.is_floating_point():
        raise ShapeError(f"{name} is {lam.dtype} {tuple(lam.shape)}; it must be a number or floats of shape ({size},).")
    if looks_are_free(lam) and not bool(((lam >= 0) & (lam <= 1)).all()):
        raise OutOfRange(f"{name} has entries from {lam.min():g} to {lam.max():g}; they must lie between 0 and 1.")
    return lam


def _has_classes(labels: Tensor, num_classes: int) -> bool:
    rows = labels.is_floating_point() or labels.dtype == torch.bool
    return not rows or (labels.ndim >= 2 and labels.shape[1] == num_classes)


def _for_samples(weight: Tensor, value: Tensor, size: int) -> Tensor:
    """`weight` (batch,) so that it broadcasts against `value` (batch, …)."""
    if value.ndim == 0 or value.shape[0] != size:
        raise TargetError(
            f"λ differs from sample to sample, and the criterion returned {tuple(value.shape)} for {size} samples: a "
            'reduced loss cannot be weighted any more. Use reduction="none" (and take the mean yourself), or '
            "Targets.cross_entropy."
        )
    return weight.to(value.device, value.dtype).view(-1, *[1] * (value.ndim - 1))


def _times(a: Weight, b: Weight) -> Weight:
    return a.to(b.device) * b if isinstance(a, Tensor) and isinstance(b, Tensor) else a * b


def _complement(lam: Weight) -> Weight:
    return 1.0 - lam


def _pick(value: Any, index: Tensor) -> Any:
    return value.index_select(0, index.to(value.device)) if isinstance(value, Tensor) else value


def _show(weight: Weight) -> str:
    return f"w{tuple(weight.shape)}" if isinstance(weight, Tensor) else f"{weight:g}"
