// Includes the whole public surface of Quire: #include <quire/quire.h>, link quire::quire.
//
// Classes that work:
// * llm.h: LLM, a model that generates; Stream.
// * chunks.h: ChunkedLLM, texts whose KV is computed once and composed in any order.
// * sequence.h: Sequence, cached tokens as a value. context.h: ContextManager, a conversation.
// * store.h: Store, KV that outlives the process. checkpoints.h: saved states of sequences.
// * tokenizer.h: Tokenizer and chat templates. answer.h: AnswerParser, parts of an answer.
// * kv_cache.h: a KV cache on a GPU, without an engine.
//
// Values that they take and return:
// * result.h: errors as values. types.h: ids and prompts. interrupt.h: how a caller ends a call.
// * options.h: options of models and requests. sampling.h: how tokens are chosen. chat.h: messages.
// * output.h: outputs. stats.h: counters. fields.h: fields by name, JSON.
// * chunk_types.h, context_types.h, sequence_types.h: what the classes of these names work on.
// * diagnostics.h: what a machine and a model are, and how fast. tools.h, version.h: versions, and
//   what the command line does besides.
#pragma once

// IWYU pragma: begin_exports
#include "quire/answer.h"
#include "quire/chat.h"
#include "quire/checkpoints.h"
#include "quire/chunk_types.h"
#include "quire/chunks.h"
#include "quire/context.h"
#include "quire/context_types.h"
#include "quire/diagnostics.h"
#include "quire/fields.h"
#include "quire/interrupt.h"
#include "quire/kv_cache.h"
#include "quire/llm.h"
#include "quire/options.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "quire/sequence.h"
#include "quire/sequence_types.h"
#include "quire/stats.h"
#include "quire/store.h"
#include "quire/tokenizer.h"
#include "quire/tools.h"
#include "quire/types.h"
#include "quire/version.h"
// IWYU pragma: end_exports
