"""The settings of a topic."""

from __future__ import annotations

from typing import Annotated

from starlette.responses import Response

from kavka.client.admin.types import ConfigResource, ConfigSource
from kavka.common.topic_config import TOPIC_CONFIGS
from kavka.console.auth import Role
from kavka.console.context import Context, fingerprint
from kavka.console.entries import Setting, checked_change, settings
from kavka.console.pages.topics import topic_path
from kavka.console.registry import Done, action, query
from kavka.console.views import View, page


@query("/topics/{topic}/settings", "List the settings of a topic with help and allowed values", topics=("topic",))
async def topic_settings(context: Context, topic: str) -> list[Setting]:
    await context.cluster.topic(topic)
    resource = ConfigResource.topic(topic)
    configs = await context.admin.describe_configs(resource, include_documentation=True)
    return settings(configs[resource].values(), TOPIC_CONFIGS, ConfigSource.DYNAMIC_TOPIC_CONFIG)


@action("/topics/{topic}/settings", "Change a setting of a topic", role=Role.ADMIN, topics=("topic",))
async def change_topic_setting(
    context: Context,
    topic: str,
    name: str,
    value: Annotated[str | None, "The new value"] = None,
    reset: Annotated[bool, "Remove the value of this topic"] = False,
    seen: Annotated[str, "The fingerprint of the displayed value"] = "",
) -> Done:
    _, change = await checked_change(lambda: topic_settings(context, topic), "topics", name, value, reset, seen)
    await context.admin.incremental_alter_configs({ConfigResource.topic(topic): [change]})
    context.cluster.mark_stale()
    message = f"{name} was reset" if reset else f"{name} is {value}"
    return Done(message, f"{topic_path(context, topic)}/settings")


@page("/topics/{topic}/settings", "Settings", tab="Settings", topics=("topic",))
async def topic_settings_page(view: View) -> Response:
    name = view.path("topic")
    return view.render(
        "topic_settings.html",
        name=name,
        entries=await topic_settings(view.context, name),
        fingerprint=fingerprint,
        may_edit=view.context.user.role >= Role.ADMIN,
    )
