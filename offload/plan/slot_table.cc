#include "offload/plan/slot_table.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/checked.h"
#include "common/status.h"
#include "offload/store/store_layout.h"

namespace strata {
namespace {

absl::Status Bad(absl::string_view field, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", what));
}

// Lays slots out, or only adds up their bytes: the search for a placement asks for sums a thousand times.
class Allocator {
 public:
  Allocator(SlotTable* table, bool sums_only) : table_(table), sums_only_(sums_only) {}

  void set_persistent(bool persistent) { persistent_ = persistent; }

  // Room for `count` slots.
  void Sum(Tier tier, int64_t bytes, int64_t count) {
    // Two versions of a state: COMMIT of a step precedes every write of the next one, so none is ever written
    // ahead. What does not persist is overwritten in place.
    const int64_t versions = tier == Tier::kNvme && persistent_ ? 2 : 1;
    table_->arena_bytes[static_cast<int>(tier)] += count * versions * RoundUp(bytes, kSlotAlignment);
  }

  // `suffix` < 0: the name ends without it.
  int32_t Add(Tier tier, int64_t bytes, absl::string_view prefix, absl::string_view name,
              int64_t suffix = -1) {
    Slot slot;
    slot.offset = tier == Tier::kNvme ? 0 : table_->arena_bytes[static_cast<int>(tier)];
    Sum(tier, bytes, 1);
    if (sums_only_) return 0;
    slot.tier = tier;
    slot.bytes = RoundUp(bytes, kSlotAlignment);
    slot.persistent = persistent_;
    slot.name = absl::StrCat(prefix, name.empty() ? "" : ".", name);
    if (suffix >= 0) absl::StrAppend(&slot.name, ".", suffix);
    table_->slots.push_back(std::move(slot));
    return static_cast<int32_t>(table_->slots.size() - 1);
  }

  SlotTable::Pool AddPool(Tier tier, int64_t count, int64_t bytes, absl::string_view prefix,
                          absl::string_view name = "") {
    SlotTable::Pool pool;
    if (sums_only_) {
      Sum(tier, bytes, std::max<int64_t>(count, 0));
      return pool;
    }
    for (int64_t i = 0; i < count; ++i) pool.push_back(Add(tier, bytes, prefix, name, i));
    return pool;
  }

 private:
  SlotTable* const table_;
  const bool sums_only_;
  bool persistent_ = false;
};

struct PoolSize {
  int64_t bytes = 0;
  int64_t needed = 0;  // at one time
  int64_t things = 0;  // that ever want a slot

  int64_t Count(int depth) const { return std::min(needed + depth - 1, things); }
};

class TableBuilder {
 public:
  TableBuilder(const ModelLayout& layout, const LayoutFacts& facts, const PlanChoice& choice, PlanKind kind,
               bool sums_only)
      : layout_(layout),
        facts_(facts),
        choice_(choice),
        train_(kind == PlanKind::kTrain),
        sums_only_(sums_only),
        alloc_(&table_, sums_only) {}

  SlotTable Build() {
    alloc_.set_persistent(true);
    AddPersistent();
    alloc_.set_persistent(false);
    persistent_host_ = table_.arena_bytes[static_cast<int>(Tier::kHost)];
    AddBatches();
    AddParams();
    AddActivations();
    AddSaved(/*rest=*/false, &table_.saved);
    AddSaved(/*rest=*/true, &table_.saved_rest);
    AddWorkspace();
    if (train_) {
      AddGradients();
      AddOptimizer();
    }
    AddStateStaging();
    return std::move(table_);
  }

 private:
  int64_t ParamBytes(int unit) const { return layout_.units[unit].elements * facts_.param_size; }
  int64_t AccBytes(int unit) const { return layout_.units[unit].elements * facts_.acc_size; }

  void AddPersistent() {
    const int units = static_cast<int>(layout_.units.size());
    if (!sums_only_) {
      table_.chunks.resize(units);
      table_.homes.resize(units);
    }
    for (int u = 0; u < units; ++u) {
      const ParamUnit& unit = layout_.units[u];
      const PlanChoice::UnitHome& home = choice_.units[u];
      const int32_t params =
          home.params == Tier::kNvme ? -1 : alloc_.Add(home.params, ParamBytes(u), "params", unit.name);
      const int32_t accumulated = home.gradients == Tier::kNvme || facts_.frozen[u]
                                      ? -1
                                      : alloc_.Add(home.gradients, AccBytes(u), "grad", unit.name);
      if (!sums_only_) {
        table_.params_home.push_back(params);
        table_.accumulated.push_back(accumulated);
      }
      if (choice_.mode == Mode::kDelayed) {
        const int32_t pending = alloc_.Add(home.gradients, AccBytes(u), "pending", unit.name);
        if (!sums_only_) table_.pending.push_back(pending);
      }
      // Whole chunks, then the rest.
      const int64_t whole = unit.elements / choice_.chunk_elements;
      const int64_t rest = unit.elements % choice_.chunk_elements;
      if (whole > 0) CountChunks(u, choice_.chunk_elements, whole);
      if (rest > 0) CountChunks(u, rest, 1);
      if (sums_only_) continue;
      for (int64_t k = 0; k < whole; ++k)
        AddChunk(u, k, k * choice_.chunk_elements, choice_.chunk_elements, params);
      if (rest > 0) AddChunk(u, whole, whole * choice_.chunk_elements, rest, params);
    }
  }

  // What `count` chunks of n elements need in the pools, and (sums only) of their homes.
  void CountChunks(int u, int64_t n, int64_t count) {
    const PlanChoice::UnitHome& home = choice_.units[u];
    const int64_t record_bytes = RecordBytes(layout_.moments, n), params_bytes = n * facts_.param_size;
    if (sums_only_) {
      alloc_.Sum(home.record, RecordSlotBytes(home, n), count);
      if (home.params == Tier::kNvme) alloc_.Sum(Tier::kNvme, Stored(params_bytes), count);
    }
    state_staging_ = std::max(state_staging_, Stored(record_bytes) + Stored(params_bytes));
    if (home.record == Tier::kDevice || facts_.frozen[u]) return;
    if (home.record == Tier::kNvme) Grow(&record_, record_bytes, count);
    if (home.params != Tier::kHost) Grow(&params_out_, params_bytes, count);
    if (home.gradients == Tier::kDevice) Grow(&accumulated_chunk_, n * facts_.acc_size, count);
  }

  int64_t RecordSlotBytes(const PlanChoice::UnitHome& home, int64_t n) const {
    const int64_t bytes = RecordBytes(layout_.moments, n);
    return home.record == Tier::kNvme ? Stored(bytes) : bytes;
  }

  void AddChunk(int u, int64_t index, int64_t begin, int64_t n, int32_t params) {
    const std::string& name = layout_.units[u].name;
    const PlanChoice::UnitHome& home = choice_.units[u];
    ChunkHome at;
    at.record_slot = alloc_.Add(home.record, RecordSlotBytes(home, n), "record", name, index);
    if (home.params == Tier::kNvme) {
      at.params_slot = alloc_.Add(Tier::kNvme, Stored(n * facts_.param_size), "params", name, index);
    } else {
      at.params_slot = params;
      at.params_offset = begin * facts_.param_size;
    }
    table_.chunks[u].push_back(ChunkInfo{u, begin, begin + n});
    table_.homes[u].push_back(at);
  }

  static int64_t Stored(int64_t bytes) { return static_cast<int64_t>(StoredBytes(bytes)); }

  static void Grow(PoolSize* pool, int64_t bytes, int64_t things = 1) {
    pool->bytes = std::max(pool->bytes, Stored(bytes));
    pool->needed = 1;
    pool->things += things;
  }

  void AddBatches() {
    // Two are enough: one in use, the next one on its way.
    const int64_t count = std::min<int64_t>(choice_.prefetch_depth, 2);
    table_.host_batch = alloc_.AddPool(Tier::kHost, count, layout_.token_bytes, "batch");
    table_.device_batch = alloc_.AddPool(Tier::kDevice, count, layout_.token_bytes, "batch");
  }

  void AddParams() {
    std::vector<PoolSize> device(facts_.classes), host(facts_.classes);
    for (int u = 0; u < static_cast<int>(layout_.units.size()); ++u) {
      const int c = facts_.unit_class[u];
      if (choice_.units[u].params == Tier::kDevice) continue;
      device[c].bytes = std::max(device[c].bytes, ParamBytes(u));
      ++device[c].things;
      if (choice_.units[u].params == Tier::kNvme && !choice_.direct) Grow(&host[c], ParamBytes(u));
    }
    std::vector<int64_t> at_once(facts_.classes);
    for (const Block& block : layout_.blocks) {
      std::fill(at_once.begin(), at_once.end(), 0);
      for (const int u : block.units) {
        if (choice_.units[u].params == Tier::kDevice) continue;
        const int c = facts_.unit_class[u];
        device[c].needed = std::max(device[c].needed, ++at_once[c]);
      }
    }
    AddPools(Tier::kHost, host, "stage.params", &table_.host_params);
    AddPools(Tier::kDevice, device, "fetch.params", &table_.device_params);
  }

  void AddPools(Tier tier, const std::vector<PoolSize>& sizes, absl::string_view prefix,
                std::vector<SlotTable::Pool>* pools) {
    for (int c = 0; c < facts_.classes; ++c) {
      pools->push_back(alloc_.AddPool(tier, sizes[c].Count(choice_.prefetch_depth), sizes[c].bytes, prefix,
                                      sums_only_ ? "" : absl::StrCat(c)));
    }
  }

  // What becomes of something between FORWARD and BACKWARD.
  enum class Fate : uint8_t {
    kPasses,  // used up by the next operation
    kStays,   // has a device slot of its own
    kToHost,
    kToNvme,
    kAgain,  // is not kept: RECOMPUTE makes it again
  };
  static Fate Kept(Tier home) {
    return home == Tier::kDevice ? Fate::kStays : home == Tier::kHost ? Fate::kToHost : Fate::kToNvme;
  }

  // The block's input.
  Fate ActivationFate(int b) const {
    if (!train_ || b < 1 || b >= facts_.head) return Fate::kPasses;
    return choice_.blocks[b].checkpoint ? Kept(choice_.blocks[b].activation) : Fate::kAgain;
  }
  Fate SavedFate(int b, bool rest) const {
    const PlanChoice::BlockChoice& block = choice_.blocks[b];
    const bool keep =
        block.saved == PlanChoice::Saved::kKeep || (block.saved == PlanChoice::Saved::kSelective && !rest);
    return train_ && keep ? Kept(block.saved_home) : Fate::kAgain;
  }
  int64_t SavedBytes(int b, bool rest) const {
    return rest ? layout_.blocks[b].saved_rest_bytes : layout_.blocks[b].saved_bytes;
  }

  bool InRing(int b) const {
    const Fate fate = ActivationFate(b);
    return b >= 1 && b <= facts_.head && fate != Fate::kStays && fate != Fate::kAgain;
  }
  // RECOMPUTE of the block has an output that nobody needs: the last one of a segment.
  bool RecomputesToNothing(int b) const {
    return train_ && SavedBytes(b, false) > 0 && SavedFate(b, false) == Fate::kAgain &&
           ActivationFate(b + 1) != Fate::kAgain;
  }

  // The longest run of blocks that are computed again together, of those that `member` is true for.
  template <typename Member>
  int64_t LongestSegment(const Member& member) const {
    int64_t longest = 0, run = 0;
    for (int b = 0; b < facts_.head; ++b) {
      run = ActivationFate(b) == Fate::kAgain ? run + 1 : 1;
      if (member(b)) longest = std::max(longest, run);
    }
    return longest;
  }

  void AddActivations() {
    PoolSize ring{layout_.activation_bytes, 0, 1};
    for (int b = 0; b < facts_.head; ++b) {
      ring.things += InRing(b + 1);
      const int64_t forward = static_cast<int64_t>(InRing(b)) + InRing(b + 1);
      const int64_t backward = static_cast<int64_t>(InRing(b)) + RecomputesToNothing(b);
      ring.needed = std::max({ring.needed, forward, backward});
    }
    SlotTable::Held* held = &table_.activation;
    const int64_t slots = ring.Count(choice_.prefetch_depth);
    held->device = alloc_.AddPool(Tier::kDevice, slots, ring.bytes, "activation");
    const int64_t segment = LongestSegment([](int) { return true; });
    held->segment =
        alloc_.AddPool(Tier::kDevice, segment - 1, layout_.activation_bytes, "recompute", "activation");
    // All of the ring may wait but for one slot: the head's input, or what RECOMPUTE makes for nobody.
    AddHomes(
        "checkpoint", "activation", slots - 1, [&](int b) { return ActivationFate(b); },
        [&](int) { return layout_.activation_bytes; }, held);
    if (train_) {
      table_.activation_gradient =
          alloc_.Add(Tier::kDevice, layout_.activation_bytes, "activation-gradient", "");
    }
  }

  // Homes from FORWARD to BACKWARD, and what NVMe items pass through. The last blocks need none: they wait in
  // `room` slots of the device's pool, and in those of the stage.
  template <typename FateOf, typename BytesOf>
  void AddHomes(absl::string_view prefix, absl::string_view name, int64_t room, const FateOf& fate,
                const BytesOf& bytes, SlotTable::Held* held) {
    if (!sums_only_) {
      for (std::vector<int32_t>* homes : {&held->own, &held->host, &held->item})
        homes->assign(layout_.blocks.size(), -1);
      held->again.assign(layout_.blocks.size(), false);
    }
    held->stays.assign(layout_.blocks.size(), false);
    held->staged.assign(layout_.blocks.size(), false);
    PoolSize stage;
    for (int b = facts_.head - 1; b >= 0; --b) {
      if (bytes(b) == 0 || (fate(b) != Fate::kToHost && fate(b) != Fate::kToNvme)) continue;
      if (room-- > 0) {
        held->stays[b] = true;
      } else if (fate(b) == Fate::kToNvme && !choice_.direct) {
        Grow(&stage, bytes(b));
      }
    }
    const int64_t stage_slots = stage.Count(choice_.prefetch_depth);
    for (int64_t b = facts_.head - 1, left = stage_slots; b >= 0 && left > 0; --b) {
      if (bytes(b) == 0 || fate(b) != Fate::kToNvme || held->stays[b]) continue;
      held->staged[b] = true;
      --left;
    }
    const auto add = [&](Tier tier, int b, std::vector<int32_t>* homes) {
      const int32_t slot = alloc_.Add(tier, bytes(b), prefix, name, b);
      if (!sums_only_) (*homes)[b] = slot;
    };
    for (int b = 0; b < facts_.head; ++b) {
      if (bytes(b) == 0 || held->stays[b] || held->staged[b]) continue;
      switch (fate(b)) {
        case Fate::kPasses:
          break;
        case Fate::kStays:
          add(Tier::kDevice, b, &held->own);
          break;
        case Fate::kToHost:
          add(Tier::kHost, b, &held->host);
          break;
        case Fate::kToNvme:
          add(Tier::kNvme, b, &held->item);
          break;
        case Fate::kAgain:
          if (!sums_only_) held->again[b] = true;
          break;
      }
    }
    held->stage = alloc_.AddPool(Tier::kHost, stage_slots, stage.bytes, "stage", name);
  }

  void AddSaved(bool rest, SlotTable::Held* held) {
    const absl::string_view name = rest ? "saved-rest" : "saved";
    PoolSize moving, segment;
    for (int b = 0; b < facts_.head; ++b) {
      const Fate fate = SavedFate(b, rest);
      const int64_t bytes = SavedBytes(b, rest);
      if (bytes == 0 || fate == Fate::kStays) continue;
      Grow(fate == Fate::kAgain ? &segment : &moving, bytes);
    }
    const int64_t again =
        LongestSegment([&](int b) { return SavedBytes(b, rest) > 0 && SavedFate(b, rest) == Fate::kAgain; });
    const int64_t slots = moving.Count(choice_.prefetch_depth);
    held->device = alloc_.AddPool(Tier::kDevice, slots, moving.bytes, "fetch", name);
    held->segment = alloc_.AddPool(Tier::kDevice, again, segment.bytes, "recompute", name);
    AddHomes(
        "kept", name, slots, [&](int b) { return SavedFate(b, rest); },
        [&](int b) { return SavedBytes(b, rest); }, held);
  }

  void AddWorkspace() {
    int64_t workspace = 64;
    for (int b = 0; b <= facts_.head; ++b) {
      const Block& block = layout_.blocks[b];
      if (b < facts_.head) workspace = std::max(workspace, block.forward_workspace_bytes);
      if (train_ || b == facts_.head) workspace = std::max(workspace, block.backward_workspace_bytes);
    }
    table_.workspace = alloc_.Add(Tier::kDevice, workspace, "workspace", "");
  }

  void AddGradients() {
    std::vector<PoolSize> device(facts_.classes), host(facts_.classes);
    std::vector<int64_t> at_once(facts_.classes);
    for (int b = 0; b <= facts_.head; ++b) {
      std::fill(at_once.begin(), at_once.end(), 0);
      for (const int u : layout_.blocks[b].units) {
        const bool on_device = choice_.units[u].gradients == Tier::kDevice && !facts_.frozen[u];
        // Every gradient but a step's first of the unit has to be added to the sum.
        const bool adds = choice_.micro_batches > 1 || facts_.first_contributor[u] != b;
        const int c = facts_.unit_class[u];
        if (!on_device || adds) {
          device[c].bytes = std::max(device[c].bytes, AccBytes(u));
          device[c].needed = std::max(device[c].needed, ++at_once[c]);
          ++device[c].things;
        }
        if (!on_device && adds && !facts_.frozen[u]) {
          host[c].bytes = std::max(host[c].bytes, AccBytes(u));
          host[c].needed = 1;
          ++host[c].things;
        }
      }
    }
    AddPools(Tier::kHost, host, "stage.grad", &table_.host_grads);
    AddNvmeSums();
    AddPools(Tier::kDevice, device, "fetch.grad", &table_.device_grads);
  }

  void AddNvmeSums() {
    std::vector<PoolSize> sums(facts_.classes);
    if (!sums_only_) table_.sum_items.resize(layout_.units.size());
    for (int u = 0; u < static_cast<int>(layout_.units.size()); ++u) {
      if (choice_.units[u].gradients != Tier::kNvme || facts_.frozen[u]) continue;
      Grow(&sums[facts_.unit_class[u]], AccBytes(u));
      // Chunks but the last are whole blocks.
      if (sums_only_) alloc_.Add(Tier::kNvme, AccBytes(u), "", "");
      if (sums_only_) continue;
      for (int k = 0; k < static_cast<int>(table_.chunks[u].size()); ++k) {
        const int64_t bytes = (table_.chunks[u][k].end - table_.chunks[u][k].begin) * facts_.acc_size;
        table_.sum_items[u].push_back(alloc_.Add(Tier::kNvme, bytes, "grad", layout_.units[u].name, k));
      }
    }
    AddPools(Tier::kHost, sums, "stage.sum", &table_.host_sums);
    CountSumsReadAgain(sums);
  }

  // The last sums of each class are where they have grown still when UPDATE comes; chunks of the others are
  // read.
  void CountSumsReadAgain(const std::vector<PoolSize>& sums) {
    std::vector<int64_t> there;
    for (const PoolSize& size : sums) there.push_back(size.Count(choice_.prefetch_depth));
    std::vector<bool> seen(layout_.units.size(), false);
    // Backward goes down the blocks, so the last sums are those of the first.
    for (const Block& block : layout_.blocks) {
      for (auto unit = block.units.rbegin(); unit != block.units.rend(); ++unit) {
        if (choice_.units[*unit].gradients != Tier::kNvme || facts_.frozen[*unit] || seen[*unit]) continue;
        seen[*unit] = true;
        if (there[facts_.unit_class[*unit]]-- > 0) continue;
        const int64_t elements = layout_.units[*unit].elements, chunk = choice_.chunk_elements;
        Grow(&accumulated_chunk_, std::min(elements, chunk) * facts_.acc_size, (elements - 1) / chunk + 1);
      }
    }
  }

  void AddOptimizer() {
    const int depth = choice_.prefetch_depth;
    // Before the others: where only a redo reads sums again, the highest slot is one that every step uses.
    table_.accumulated_chunk = alloc_.AddPool(Tier::kHost, accumulated_chunk_.Count(depth),
                                              accumulated_chunk_.bytes, "stage.accumulated");
    table_.record = alloc_.AddPool(Tier::kHost, record_.Count(depth), record_.bytes, "stage.record");
    table_.params_out =
        alloc_.AddPool(Tier::kHost, params_out_.Count(depth), params_out_.bytes, "stage.params-out");
  }

  // Between runs the executor moves states through the host arena behind the persistent slots: one chunk's
  // record, then its parameters. Steps seldom need less than that there.
  void AddStateStaging() {
    const int64_t transient = table_.arena_bytes[static_cast<int>(Tier::kHost)] - persistent_host_;
    if (transient < state_staging_) alloc_.Add(Tier::kHost, state_staging_ - transient, "state staging", "");
  }

  const ModelLayout& layout_;
  const LayoutFacts& facts_;
  const PlanChoice& choice_;
  const bool train_;
  const bool sums_only_;
  SlotTable table_;
  Allocator alloc_;
  int64_t persistent_host_ = 0;
  int64_t state_staging_ = 0;
  PoolSize record_, params_out_, accumulated_chunk_;
};

// Classes: units of transformers and the others apart, each sorted by size and cut where the size halves.
void ClassifyUnits(const ModelLayout& layout, LayoutFacts* facts) {
  const int units = static_cast<int>(layout.units.size());
  std::vector<bool> in_transformer(units, false);
  for (const Block& block : layout.blocks) {
    if (block.kind != BlockKind::kTransformer) continue;
    for (const int u : block.units) in_transformer[u] = true;
  }
  facts->unit_class.assign(units, 0);
  for (const bool transformer : {false, true}) {
    std::vector<int> members;
    for (int u = 0; u < units; ++u) {
      if (in_transformer[u] == transformer) members.push_back(u);
    }
    std::stable_sort(members.begin(), members.end(),
                     [&](int a, int b) { return layout.units[a].elements > layout.units[b].elements; });
    int64_t largest = 0;
    for (const int u : members) {
      if (largest == 0 || layout.units[u].elements * 2 < largest) {
        largest = layout.units[u].elements;
        ++facts->classes;
      }
      facts->unit_class[u] = facts->classes - 1;
    }
  }
}

}  // namespace

LayoutFacts::LayoutFacts(const ModelLayout& layout) {
  param_size = SizeOf(layout.compute_dtype);
  acc_size = SizeOf(layout.acc_dtype());
  head = static_cast<int>(layout.blocks.size()) - 1;
  uses.assign(layout.units.size(), 0);
  first_contributor.assign(layout.units.size(), -1);
  for (int b = 0; b <= head; ++b) {
    for (const int u : layout.blocks[b].units) {
      if (uses[u]++ == 0) first_use_order.push_back(u);
      first_contributor[u] = b;  // Backward goes down, so the last block comes first.
    }
  }
  for (const ParamUnit& unit : layout.units) frozen.push_back(unit.frozen());
  ClassifyUnits(layout, this);
}

bool IsFirstContribution(const LayoutFacts& facts, int block, int unit, int64_t micro_batch) {
  return micro_batch == 0 && facts.first_contributor[unit] == block;
}

absl::Status CheckLayout(const ModelLayout& layout) {
  const int64_t blocks = static_cast<int64_t>(layout.blocks.size());
  if (blocks < 3) return Bad("layout.blocks", "an embedding, at least one transformer and a head are needed");
  if (layout.compute_dtype == DType::kI32) return Bad("layout.compute_dtype", "i32 is not a compute type");
  if (layout.activation_bytes <= 0 || layout.token_bytes <= 0)
    return Bad("layout", "activation_bytes and token_bytes must be positive");
  std::vector<bool> used(layout.units.size(), false);
  for (int64_t b = 0; b < blocks; ++b) {
    const Block& block = layout.blocks[b];
    const BlockKind expected = b == 0            ? BlockKind::kEmbedding
                               : b == blocks - 1 ? BlockKind::kHead
                                                 : BlockKind::kTransformer;
    const std::string field = absl::StrCat("layout.blocks[", b, "]");
    if (block.kind != expected) return Bad(field, "blocks are an embedding, transformers, a head");
    if (block.saved_bytes < 0 || block.saved_rest_bytes < 0 || block.forward_workspace_bytes < 0 ||
        block.backward_workspace_bytes < 0)
      return Bad(field, "a size is negative");
    if (block.saved_rest_bytes > 0 && block.saved_bytes == 0)
      return Bad(field, "saved_rest_bytes are computed again from saved_bytes, of which there are none");
    for (size_t i = 0; i < block.units.size(); ++i) {
      const int u = block.units[i];
      if (u < 0 || u >= static_cast<int>(layout.units.size()))
        return Bad(field, absl::StrCat("unit ", u, " does not exist"));
      if (std::find(block.units.begin(), block.units.begin() + i, u) != block.units.begin() + i)
        return Bad(field, absl::StrCat("unit ", layout.units[u].name, " twice"));
      used[u] = true;
    }
  }
  for (size_t u = 0; u < layout.units.size(); ++u) {
    const ParamUnit& unit = layout.units[u];
    const std::string field = absl::StrCat("layout.units[", u, "] ", unit.name);
    if (unit.elements <= 0 || unit.elements % kTensorAlignment != 0)
      return Bad(field,
                 absl::StrCat(unit.elements, " elements are not a positive multiple of ", kTensorAlignment));
    if (!used[u]) return Bad(field, "no block uses it");
  }
  return absl::OkStatus();
}

absl::Status CheckSizes(const ModelLayout& layout, int64_t chunk_elements, int64_t micro_batches) {
  constexpr int64_t kMaxChunks = 1 << 18;
  constexpr int64_t kMaxBlockRuns = 1 << 20;
  if (chunk_elements <= 0 || chunk_elements % kChunkMultiple != 0)
    return Bad("memory.chunk_elements",
               absl::StrCat(chunk_elements, " is not a positive multiple of ", kChunkMultiple));
  int64_t chunks = 0;
  for (const ParamUnit& unit : layout.units) chunks += (unit.elements - 1) / chunk_elements + 1;
  if (chunks > kMaxChunks)
    return Bad("memory.chunk_elements",
               absl::StrCat("chunks of ", chunk_elements, " elements cut this model into ", chunks,
                            " chunks, more than ", kMaxChunks, "; choose larger chunks or a smaller model"));
  const int64_t blocks = static_cast<int64_t>(layout.blocks.size());
  if (micro_batches < 1 || micro_batches > kMaxBlockRuns / blocks)
    return Bad("training.micro_batch",
               absl::StrCat(micro_batches, " micro-batches per step are not in 1..", kMaxBlockRuns / blocks,
                            " for a model of ", blocks, " blocks; choose a larger training.micro_batch"));
  return absl::OkStatus();
}

absl::Status CheckChoice(const ModelLayout& layout, const PlanChoice& choice) {
  STRATA_RETURN_IF_ERROR(CheckSizes(layout, choice.chunk_elements, choice.micro_batches));
  if (choice.prefetch_depth < 1 || choice.prefetch_depth > 64)
    return Bad("memory.prefetch_depth", absl::StrCat(choice.prefetch_depth, " is outside 1..64"));
  if (choice.io_threads < 1 || choice.io_threads > 64)
    return Bad("memory.io_threads", absl::StrCat(choice.io_threads, " is outside 1..64"));
  if (choice.mode == Mode::kOverlap && choice.clip)
    return Bad(
        "memory.mode",
        "overlap updates before the global norm is known; with training.grad_clip use forward-overlap, "
        "speculative or sync");
  if (choice.units.size() != layout.units.size() || choice.blocks.size() != layout.blocks.size())
    return Bad("choice", "one entry per unit and per block of the layout is needed");
  for (size_t u = 0; u < choice.units.size(); ++u) {
    const PlanChoice::UnitHome& home = choice.units[u];
    if (home.gradients == Tier::kNvme && choice.mode == Mode::kDelayed)
      return Bad("memory.placement.gradients",
                 "mode delayed keeps the gradients of two steps in device or host memory, not on nvme");
    if (home.record == Tier::kDevice && home.gradients != Tier::kDevice)
      return Bad("memory.placement.optimizer",
                 "device needs the gradients on the device too; set placement.gradients: device");
    if (home.record == Tier::kDevice && home.params != Tier::kDevice)
      return Bad("memory.placement.optimizer",
                 "device needs the parameters on the device too; set placement.params: device");
  }
  // Segments: a checkpoint and the transformer blocks above it that have none.
  const int head = static_cast<int>(choice.blocks.size()) - 1;
  for (int b = 0; b <= head; ++b) {
    if (choice.blocks[b].checkpoint) continue;
    if (b < 2 || b == head)
      return Bad("memory.recompute",
                 absl::StrCat("block ", b, " needs a checkpoint: there is none below it"));
    if (choice.blocks[b].saved != PlanChoice::Saved::kRecompute ||
        choice.blocks[b - 1].saved != PlanChoice::Saved::kRecompute)
      return Bad(
          "memory.recompute",
          absl::StrCat("block ", b, " has no checkpoint, so its segment is computed again as a whole and ",
                       "keeps nothing"));
  }
  return absl::OkStatus();
}

SlotTable MakeSlotTable(const ModelLayout& layout, const LayoutFacts& facts, const PlanChoice& choice,
                        PlanKind kind) {
  return TableBuilder(layout, facts, choice, kind, /*sums_only=*/false).Build();
}

std::array<int64_t, kTierCount> PeakBytes(const ModelLayout& layout, const LayoutFacts& facts,
                                          const PlanChoice& choice) {
  std::array<int64_t, kTierCount> peak{};
  for (const PlanKind kind : {PlanKind::kTrain, PlanKind::kEval}) {
    const SlotTable table = TableBuilder(layout, facts, choice, kind, /*sums_only=*/true).Build();
    for (int t = 0; t < kTierCount; ++t) peak[t] = std::max(peak[t], table.arena_bytes[t]);
  }
  return peak;
}

}  // namespace strata
