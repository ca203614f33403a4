// Checks a chunk in its place, and repairs one of its two copies from the other.
//
// Run checks memory, then the file, at the caller's pace and without the lock of the chunk's
// file. If one is damaged, Settle checks both again with the lock, and acts:
//   memory            file                  act
//   damaged           whole or unreadable   LetGo: the chunk becomes cold
//   whole             damaged               WriteAgain: writes the file from memory
//   damaged           damaged or absent     TakeOut: drops the chunk, quarantines the file
//   absent            damaged               TakeOut

#include <algorithm>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_format.h"
#include "proto/base/status.h"
#include "proto/base/stripe.h"
#include "store/chunk_store.h"

namespace ckv {
namespace {

// One of the two places where a chunk may be.
struct Finding {
  enum class Part { kAbsent, kWhole, kDamaged, kUnreadable };
  Part part = Part::kAbsent;
  std::string why = {};
};
using Part = Finding::Part;

bool GoOn(uint64_t /*bytes*/) { return true; }

// The work of one call of Verify.
class ChunkVerifier {
 public:
  ChunkVerifier(ChunkTable* table, ChunkFiles* files, ChunkLocator locator)
      : table_(*table), files_(*files), locator_(locator) {}

  absl::StatusOr<ChunkCheck> Run(VerifyPace pace) {
    CKV_ASSIGN_OR_RETURN(what_, table_.Describe(locator_));
    layout_ = ChunkLayout(*what_.geometry, what_.token_count);
    check_.rows_checksum = what_.checksums_digest;
    CKV_ASSIGN_OR_RETURN(const Finding memory, CheckMemory(pace));
    CKV_ASSIGN_OR_RETURN(const Finding file, CheckFile(pace));
    if (memory.part == Part::kDamaged || file.part == Part::kDamaged) return Settle();
    if (file.part == Part::kUnreadable) return Say(ChunkCheck::Health::kUnreadable, file.why);
    return check_;
  }

 private:
  ChunkCheck Say(ChunkCheck::Health health, std::string why) {
    check_.health = health;
    check_.why = std::move(why);
    return check_;
  }

  uint64_t StripeBytes(uint32_t tensor) const {
    return uint64_t{kStripeTokens} * layout_.row_bytes(tensor);
  }
  uint32_t StripesAtOnce(uint32_t tensor) const {
    return static_cast<uint32_t>(std::max<uint64_t>(1, kVerifyStepBytes / StripeBytes(tensor)));
  }

  // Stops if the chunk becomes cold. A pin counts as a use, but one use per pass delays an eviction
  // by little.
  absl::StatusOr<Finding> CheckMemory(VerifyPace pace) {
    if (absl::IsUnavailable(table_.Pin(locator_).status())) return Finding{};
    const uint32_t stripes = StripeCount(what_.token_count);
    for (uint32_t t = 0; t < layout_.tensor_count(); ++t) {
      const uint32_t at_once = StripesAtOnce(t);
      for (uint32_t begin = 0; begin < stripes; begin += at_once) {
        const uint32_t end = std::min(stripes, begin + at_once);
        if (!pace((end - begin) * StripeBytes(t))) return absl::CancelledError("verify: stopped");
        const auto pin = table_.Pin(locator_);
        if (absl::IsUnavailable(pin.status())) return Finding{};
        if (!pin.ok()) return pin.status();
        if (const auto damaged = DamagedStripe(pin->chunk(), t, begin, end)) {
          return Finding{Part::kDamaged,
                         absl::StrFormat("%s, tokens from %d in memory: their checksum is "
                                         "not theirs",
                                         what_.geometry->TensorName(t), *damaged * kStripeTokens)};
        }
      }
    }
    return Finding{Part::kWhole};
  }

  std::optional<uint32_t> DamagedStripe(const Chunk& chunk, uint32_t tensor, uint32_t begin,
                                        uint32_t end) {
    const std::span<const std::byte> rows = chunk.tensor(tensor);
    const uint64_t stripe_bytes = StripeBytes(tensor);
    for (uint32_t stripe = begin; stripe < end; ++stripe) {
      const uint64_t at = stripe * stripe_bytes;
      const auto step = rows.subspan(at, std::min(stripe_bytes, rows.size() - at));
      check_.bytes_checked += step.size();
      if (StripeChecksum(step) != chunk.stripe_checksums(tensor)[stripe]) return stripe;
    }
    return std::nullopt;
  }

  absl::StatusOr<Finding> CheckFile(VerifyPace pace) {
    if (files_.folder() == nullptr || !table_.IsDurable(what_.id)) return Finding{};
    absl::Status status = ReadFile(pace);
    switch (status.code()) {
      case absl::StatusCode::kOk:
        return Finding{Part::kWhole};
      case absl::StatusCode::kCancelled:
        return status;
      // The file's version was readable when the chunk was added, so the version is damaged, too.
      case absl::StatusCode::kFailedPrecondition:
      case absl::StatusCode::kDataLoss:
      case absl::StatusCode::kInvalidArgument:
      case absl::StatusCode::kNotFound:
        return Finding{Part::kDamaged, std::string(status.message())};
      default:
        return Finding{Part::kUnreadable, std::string(status.message())};
    }
  }

  absl::Status ReadFile(VerifyPace pace) {
    CKV_ASSIGN_OR_RETURN(const ChunkFileReader first, files_.folder()->Read(what_.id));
    const uint64_t header_bytes = first.header().prefix.header_bytes;
    if (!pace(header_bytes)) return absl::CancelledError("verify: stopped");
    first.DropCached();
    // Reads it again, past the system's cache.
    CKV_ASSIGN_OR_RETURN(const ChunkFileReader file, files_.folder()->Read(what_.id));
    const absl::Cleanup forget = [&file] { file.DropCached(); };  // nor is it read again soon
    check_.bytes_checked += header_bytes;
    if (DigestOf(file.header().info.tensor_checksums) != what_.checksums_digest)
      return absl::DataLossError("its file is of other rows");
    const uint32_t stripes = StripeCount(what_.token_count);
    std::vector<std::byte> buffer;
    for (uint32_t t = 0; t < layout_.tensor_count(); ++t) {
      const uint32_t at_once = StripesAtOnce(t);
      buffer.resize(at_once * StripeBytes(t));
      for (uint32_t begin = 0; begin < stripes; begin += at_once) {
        const uint32_t count = std::min(at_once, stripes - begin);
        const uint64_t bytes = file.StripeBytes(t, begin, count);
        if (!pace(bytes)) return absl::CancelledError("verify: stopped");
        CKV_RETURN_IF_ERROR(file.ReadStripes(t, begin, count, std::span(buffer).first(bytes)));
        check_.bytes_checked += bytes;
      }
      CKV_RETURN_IF_ERROR(file.CheckPaddingOf(t));
    }
    return absl::OkStatus();
  }

  // Something is damaged, or was. Checks the chunk again with its file locked, so that neither a
  // put nor another check intervenes.
  absl::StatusOr<ChunkCheck> Settle() {
    const ChunkFileLock file_lock(files_.locks(), what_.id);
    CKV_ASSIGN_OR_RETURN(what_, table_.Describe(locator_));
    // From here on the rows stay in memory.
    auto pin = table_.Pin(locator_);
    CKV_ASSIGN_OR_RETURN(const Finding memory, CheckMemory(GoOn));
    CKV_ASSIGN_OR_RETURN(const Finding file, CheckFile(GoOn));
    const bool memory_damaged = memory.part == Part::kDamaged;
    if (memory_damaged && (file.part == Part::kWhole || file.part == Part::kUnreadable)) {
      LetGo();  // pinned, so that it is not evicted, and packed, in between
      if (file.part == Part::kUnreadable) return Say(ChunkCheck::Health::kUnreadable, file.why);
      return Say(ChunkCheck::Health::kHealed, memory.why + "; its file is whole and is read again");
    }
    if (file.part == Part::kUnreadable) return Say(ChunkCheck::Health::kUnreadable, file.why);
    if (file.part == Part::kDamaged && memory.part == Part::kWhole && pin.ok())
      return WriteAgain(pin->chunk(), file.why);
    if (memory_damaged || file.part == Part::kDamaged) {
      pin = ChunkPin();
      const std::string why = memory_damaged ? memory.why : file.why;
      files_.TakeOut(what_, why);
      return Say(ChunkCheck::Health::kDamaged, why);
    }
    return check_;
  }

  // Call with the chunk's file locked. A reader of the damaged rows keeps them until it unpins. New
  // readers do not find them.
  void LetGo() {
    const ChunkFacts facts = table_.ledger().FactsOf(what_.id).value_or(ChunkFacts{});
    const absl::Status cold = table_.Chill(locator_);
    if (absl::IsNotFound(cold)) return;
    if (!cold.ok()) {
      // The chunk is missing until a replica's copy arrives, or a restart finds the file.
      files_.Lose(what_.id, facts);
      return;
    }
    // A mark that was set while the file was read is on disk before the call that set it returns.
    files_.SaveFacts(what_.id).IgnoreError();
    files_.damage().AddHealed();
  }

  // Replaces the damaged file, completely or not at all.
  ChunkCheck WriteAgain(const Chunk& chunk, const std::string& why) {
    const absl::Status status = Write(chunk);
    if (!status.ok()) {
      // The only whole copy: not to be evicted until a later check can write it.
      table_.SetEvictable(what_.id, false);
      return Say(ChunkCheck::Health::kUnreadable,
                 absl::StrFormat("%s; the rows in memory are whole, but its file cannot be "
                                 "written again: %s",
                                 why, std::string(status.message())));
    }
    table_.SetEvictable(what_.id, true);
    files_.damage().AddHealed();
    return Say(ChunkCheck::Health::kHealed, why + "; it was written again from memory");
  }

  absl::Status Write(const Chunk& chunk) {
    // Facts next to the file name its other readers. Without any there is one reader.
    const std::optional<ChunkFacts> facts = table_.ledger().FactsOf(what_.id);
    if (!facts) return absl::NotFoundError("the chunk was dropped just now");
    const std::string& tenant = facts->readers.front();
    CKV_ASSIGN_OR_RETURN(ChunkFileWriter file,
                         files_.folder()->Begin(chunk.info(), chunk.geometry(), tenant));
    for (uint32_t t = 0; t < layout_.tensor_count(); ++t)
      CKV_RETURN_IF_ERROR(file.Write(t, 0, chunk.tensor(t)));
    return std::move(file).Commit(chunk, tenant);
  }

  ChunkTable& table_;
  ChunkFiles& files_;
  const ChunkLocator locator_;
  ChunkSummary what_;
  ChunkLayout layout_;
  ChunkCheck check_;
};

}  // namespace

absl::StatusOr<ChunkCheck> ChunkStore::Verify(ChunkLocator locator, VerifyPace pace) {
  const auto what = table_.Describe(locator);
  auto check = ChunkVerifier(&table_, &files_, locator).Run(pace);
  if (what.ok() && check.ok()) {
    faults_.NoteCheck(what->id, check->health != ChunkCheck::Health::kUnreadable);
    files_.ForgetIfDropped(what->id);
  }
  return check;
}

}  // namespace ckv
