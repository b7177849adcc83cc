// Includes the whole public surface of Quire: #include <quire/quire.h>, link quire::quire.
//
// * llm.h: LLM, a model that generates; Stream. sampling.h: how tokens are chosen. output.h:
//   outputs.
// * chunks.h: ChunkedLLM, texts whose KV is computed once and composed in any order.
// * sequence.h: Sequence, cached tokens as a value. context.h: ContextManager, a conversation.
// * store.h: Store, KV that outlives the process. checkpoints.h: saved states of sequences.
// * tokenizer.h: Tokenizer and chat templates.
// * result.h: errors as values. types.h: ids. fields.h: fields by name, JSON.
// * kv_cache.h: a KV cache on a GPU, without an engine.
// * tools.h, version.h: versions, and what the command line does besides.
#pragma once

// IWYU pragma: begin_exports
#include "quire/checkpoints.h"
#include "quire/chunks.h"
#include "quire/context.h"
#include "quire/fields.h"
#include "quire/kv_cache.h"
#include "quire/llm.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "quire/sequence.h"
#include "quire/store.h"
#include "quire/tokenizer.h"
#include "quire/tools.h"
#include "quire/types.h"
#include "quire/version.h"
// IWYU pragma: end_exports
