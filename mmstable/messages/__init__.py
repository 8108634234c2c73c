"""How is it said?  One catalogue of messages, in the language of the run."""

from mmstable.messages.language import LANGUAGES, use_language
from mmstable.messages.say import say

__all__ = ['LANGUAGES', 'say', 'use_language']
