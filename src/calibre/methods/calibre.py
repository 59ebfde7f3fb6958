"""Calibre: Towards Fair and Accurate Personalized Federated Learning with Self-Supervised Learning.

S. Chen, N. Su, B. Li, ICDCS 2024. Algorithm 1 and section IV. On top of any self-supervised
objective,

- k-means prototypes of every batch give two more loss terms:
  L = l_s + alpha_p L_p + alpha_n L_n  (``calibre.calibration.regularizers``), and
- a client's divergence, the mean distance of its encodings to their prototypes, weights it in the
  server's mean: w_c ~ n_c / delta_c^gamma  (``calibre.calibration.divergence``).

With alpha_p = alpha_n = 0 and gamma = 0 it is pFL-SSL, bit for bit.
"""

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

from pydantic import Field
from torch import Tensor, nn

from calibre.calibration.divergence import DivergenceSettings, divergence, weight
from calibre.calibration.regularizers import Regularizers, calibration_terms
from calibre.local.features import encode
from calibre.local.sgd import SGD, Batch
from calibre.local.site import Site
from calibre.methods import self_supervised as ssl
from calibre.methods.method import Method, ServerState, Update
from calibre.models.network import Problem
from calibre.ssl.objective import AnyObjective, Pair
from calibre.tensors import Tensors, WeightedMean, step_towards, take


class Aggregation(DivergenceSettings):
    """How delta_c is measured, and what it does to the server's mean."""

    gamma: float = 1.0  # w_c ~ n_c / delta_c^gamma; 0: FedAvg; -1: favour diverging clients
    server_rate: Annotated[float, Field(gt=0)] = 1.0  # eta_g
    ref_double: bool = False  # the published code's weights, which sum to 1/M


class Calibre(Method):
    title: ClassVar[str] = "Calibre"
    paper: ClassVar[str] = "Chen, Su and Li, Calibre, ICDCS 2024"

    name: Literal["calibre"] = "calibre"
    objective: AnyObjective = Field(default="simclr", validate_default=True)
    exchange: ssl.Exchange = "model"  # encoder: the heads stay with their client
    sgd: SGD = SGD()
    prototypes: Regularizers = Regularizers()
    aggregation: Aggregation = Aggregation()

    @property
    def label(self) -> str:
        analysis = " with true labels: analysis only" if self.prototypes.oracle_labels else ""
        return f"Calibre ({ssl.objective_title(self.objective)}){analysis}"

    def build(self, problem: Problem) -> nn.Module:
        return ssl.build_objective(self.objective, problem)

    def shared_parts(self, network: nn.Module) -> tuple[str, ...]:
        return ssl.shared_parts(network, self.exchange)

    def local_update(self, server: ServerState, personal: Tensors | None, site: Site) -> Update:
        site.load(server.model, personal)
        report = ssl.train_objective(site, self.sgd, self._regularizers(site))
        samples = len(site.images)
        if self.aggregation.gamma == 0:
            share: float = samples
        else:
            z = encode(site.network.get_submodule("encoder"), site.images, site.normalization)
            rate = divergence(z, self.aggregation, site.generator("divergence"))
            share = weight(samples, rate, self.aggregation.gamma)
            report["divergence"] = rate
        return Update(
            site.client,
            samples=samples,
            weight=share,
            shared={"model": take(site.network, self.shared_parts(site.network))},
            personal=ssl.kept_parts(site.network, self.exchange),
            report=report,
        )

    def _regularizers(self, site: Site) -> ssl.Extra | None:
        """alpha_p L_p + alpha_n L_n of a batch, and what to report of them."""
        settings = self.prototypes
        if settings.alpha_p == 0 and settings.alpha_n == 0:
            return None

        def extra(batch: Batch, pair: Pair) -> Mapping[str, Tensor]:
            terms = calibration_terms(
                settings, pair.z_a, pair.z_b, pair.h_a, pair.h_b,
                site.generator("kmeans", batch.step), site.labels[batch.rows],
            )  # fmt: skip
            return {
                "weighted": settings.alpha_p * terms.l_p + settings.alpha_n * terms.l_n,
                "l_p": terms.l_p,
                "l_n": terms.l_n,
                "clusters": terms.clusters_valid,
                "dropped": terms.dropped,
                "agreement": terms.agreement,
            }

        return extra

    def aggregate(self, server: ServerState, updates: Iterable[Update]) -> ServerState:
        """theta <- theta + eta_g sum_c w_c (theta_c - theta), read as a stream."""
        settings = self.aggregation
        mean, rates, waiting = WeightedMean(), [], []
        total_samples, total_inverse = 0.0, 0.0

        def add(update: Update) -> None:
            nonlocal total_samples, total_inverse
            mean.add(update.shared["model"], update.weight)
            total_samples += update.samples
            total_inverse += update.weight / update.samples

        for update in updates:
            if math.isfinite(update.weight):
                rates.append(update.report.get("divergence", math.nan))
                add(update)
            else:
                waiting.append(update)  # its divergence is not a number: it gets the median
        for update in waiting:
            rate = statistics.median(rates) if rates else 1.0  # all unknown: FedAvg's weights
            add(replace(update, weight=weight(update.samples, rate, settings.gamma)))
        step = settings.server_rate
        if settings.ref_double:
            # the published code weights by (1/delta) / sum(1/delta) times n / sum(n) and does not
            # renormalise: a server step of about 1/M (ALGORITHMS A.4)
            step *= mean.weight / (total_inverse * total_samples)
        return server.next(model=step_towards(server.model, mean.result(), step))
