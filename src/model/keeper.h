// The keeper: a small process that holds the descriptors of weights in device memory, and nothing else, so that they
// outlive the process that loaded them. It has no CUDA context, so nothing that happens on the GPU can end it.
//
// It listens at a socket in the user's own folder (mode 0700; $XDG_RUNTIME_DIR/faultline, else /tmp/faultline-UID) and
// serves processes of that user alone. One connection, one request, one answer:
//
//   {"request": "describe"}  {"pid": 17, "manifest": "…"}
//   {"request": "take"}      the same, with the descriptors
//   {"request": "release"}   {"pid": 17}, sent when its descriptors are closed; the keeper then ends
//
// A keeper whose socket has been removed ends by itself: nobody could reach it any more.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "model/weights_manifest.h"

namespace faultline {

// Makes the folder. Bad input when it is somebody else's, or open to others.
Result<std::string> keeper_directory();

// The socket of a model's weights on a device.
std::string keeper_socket(const std::string& directory, const std::string& model_path, const std::string& device_uuid);

struct HeldModel {
  WeightsManifest manifest;
  std::string socket;
  pid_t pid = 0;
};

// Everything that is held, in keeper_directory(); makes no folder.
Result<std::vector<HeldModel>> list_all_held(std::vector<std::string>& notes);
// What is held there, by path. Sockets that a killed keeper left are removed. `notes` gets a sentence for each keeper
// that did not answer as it should.
Result<std::vector<HeldModel>> list_held(const std::string& directory, std::vector<std::string>& notes);

struct HeldDescriptors {
  std::vector<UniqueFd> checkpoint;  // of synthetic weights
  std::vector<UniqueFd> slabs;
};
// Internal error when the keeper is gone.
Result<HeldDescriptors> take_held(const HeldModel& held);

// Returns when the keeper has closed its descriptors.
Status release_held(const HeldModel& held);

// Starts a keeper that outlives this process, and returns when it answers. `descriptors`: the checkpoint's and the
// slabs', as the manifest says; they stay ours, too. Bad input when the model is held there already.
Result<pid_t> start_keeper(const std::string& directory, const WeightsManifest& manifest,
                           const std::vector<int>& descriptors, const std::string& program = "/proc/self/exe");

// The main function of `faultline keeper` (started by start_keeper; not for people).
int keeper_main();

}  // namespace faultline
