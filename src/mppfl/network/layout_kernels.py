"""Compiled part of `layout`: forces between nodes until they settle, and nodes moved off each other."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit


@njit(cache=True, fastmath=True)
def settle(x: Any, y: Any, mass: Any, firsts: Any, seconds: Any, pull: Any, centring: Any, heat: Any) -> None:
    """Moves nodes in place, one step for each entry of `heat`, the longest way a node may go in that step.

    Every two nodes push each other apart by mass · mass / distance; a link pulls its ends together by pull · distance;
    everything is drawn to the middle by centring · mass · distance. All of one float type, so that loops vectorise.
    """
    size = len(x)
    push_x, push_y = np.empty_like(x), np.empty_like(y)
    for step in range(len(heat)):
        for i in range(size):
            here_x, here_y = x[i], y[i]
            sum_x = sum_y = np.float32(0.0)
            for j in range(size):
                right, down = here_x - x[j], here_y - y[j]
                push = mass[j] / (right * right + down * down + np.float32(1e-3))
                sum_x += right * push
                sum_y += down * push
            push_x[i] = mass[i] * (sum_x - centring * here_x)
            push_y[i] = mass[i] * (sum_y - centring * here_y)
        for k in range(len(firsts)):
            a, b = firsts[k], seconds[k]
            pull_x, pull_y = pull[k] * (x[b] - x[a]), pull[k] * (y[b] - y[a])
            push_x[a] += pull_x
            push_y[a] += pull_y
            push_x[b] -= pull_x
            push_y[b] -= pull_y
        for i in range(size):
            # Heavy nodes are pushed and pulled more; by their mass they also move less.
            way_x, way_y = push_x[i] / mass[i], push_y[i] / mass[i]
            length = np.sqrt(way_x * way_x + way_y * way_y) + np.float32(1e-9)
            share = min(np.float32(0.2), heat[step] / length)
            x[i] += share * way_x
            y[i] += share * way_y


@njit(cache=True)
def move_apart(x: Any, y: Any, radii: Any, width: float, height: float, sweeps: int) -> int:
    """Moves touching nodes off each other in place, within the box; returns how many pairs touched at the last sweep.

    Two at the very same point part along a direction of their own, so that the result does not depend on chance.
    """
    size = len(x)
    touching = 0
    for _ in range(sweeps):
        touching = 0
        for i in range(size):
            for j in range(i):
                apart = radii[i] + radii[j]
                right = x[i] - x[j]
                if right > apart or right < -apart:
                    continue
                down = y[i] - y[j]
                square = right * right + down * down
                if square >= apart * apart:
                    continue
                touching += 1
                distance = np.sqrt(square)
                if distance < 1e-6:
                    right, down, distance = np.cos(2.4 * i), np.sin(2.4 * i), 1.0
                    missing = 0.5 * apart
                else:
                    missing = 0.5 * (1.02 * apart - distance)
                x[i] += missing * right / distance
                y[i] += missing * down / distance
                x[j] -= missing * right / distance
                y[j] -= missing * down / distance
        for i in range(size):
            x[i] = min(max(x[i], radii[i]), width - radii[i])
            y[i] = min(max(y[i], radii[i]), height - radii[i])
        if touching == 0:
            break
    return touching
