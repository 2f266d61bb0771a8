/* The C interface of Tessera: meshes, communicators, pipeline schedules, the
 * planner and checkpoints, for programs in C and in languages that call C.
 *
 *   tessera_communicator *world;
 *   if (tessera_communicator_join(NULL, 60, &world) != TESSERA_OK) {
 *     fprintf(stderr, "%s\n", tessera_error_message());
 *   }
 *   tessera_all_reduce(world, x, x, count, TESSERA_F32, TESSERA_SUM);
 *
 * Functions that can fail return a status and set the message of the calling
 * thread; their results are then unchanged. Texts are UTF-8 and end with a null
 * byte. An object belongs to the caller until the function that destroys it,
 * which accepts NULL. Functions may be called from any thread, but only one
 * thread at a time may use an object, except for tessera_communicator_abort.
 *
 * The ABI is stable: later versions of the library add functions and values,
 * and keep those of this file with their symbol version, TESSERA_1.
 */
#ifndef TESSERA_H_
#define TESSERA_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The codes of absl::Status. Enumerations have the size of int32_t. */
typedef int32_t tessera_status;
enum {
  TESSERA_OK = 0,
  TESSERA_CANCELLED = 1,
  TESSERA_UNKNOWN = 2,
  TESSERA_INVALID_ARGUMENT = 3,
  TESSERA_DEADLINE_EXCEEDED = 4,
  TESSERA_NOT_FOUND = 5,
  TESSERA_ALREADY_EXISTS = 6,
  TESSERA_PERMISSION_DENIED = 7,
  TESSERA_RESOURCE_EXHAUSTED = 8,
  TESSERA_FAILED_PRECONDITION = 9,
  TESSERA_ABORTED = 10,
  TESSERA_OUT_OF_RANGE = 11,
  TESSERA_UNIMPLEMENTED = 12,
  TESSERA_INTERNAL = 13,
  TESSERA_UNAVAILABLE = 14,
  TESSERA_DATA_LOSS = 15
};

/* The version of the library, such as "0.1.0". */
const char *tessera_version(void);

/* The message of the calling thread's last failure; "" before the first. Valid
 * until the thread's next failure. */
const char *tessera_error_message(void);

/* Frees a text that a function returned. */
void tessera_free_text(char *text);

/* Element types. */
typedef int32_t tessera_dtype;
enum {
  TESSERA_F64 = 0,
  TESSERA_F32 = 1,
  TESSERA_F16 = 2,
  TESSERA_BF16 = 3,
  TESSERA_F8_E4M3 = 4,
  TESSERA_F8_E5M2 = 5,
  TESSERA_I64 = 6,
  TESSERA_I32 = 7,
  TESSERA_I8 = 8,
  TESSERA_U8 = 9
};

/* ---- Meshes: ranks on a grid of named axes ------------------------------- */

typedef struct tessera_mesh tessera_mesh;

/* Creates a mesh from axes with sizes, "dp2,pp2,tp2", and an order that names
 * the fastest-varying axis first, "tp-cp-ep-dp-pp"; NULL: the order of `axes`.
 * INVALID_ARGUMENT names what is wrong. */
tessera_status tessera_mesh_create(const char *axes, const char *order,
                                   tessera_mesh **mesh);
void tessera_mesh_destroy(tessera_mesh *mesh);

/* The number of ranks, from 0. */
int64_t tessera_mesh_world_size(const tessera_mesh *mesh);

/* A rank's coordinate along one axis. */
tessera_status tessera_mesh_coordinate(const tessera_mesh *mesh, int64_t rank,
                                       const char *axis, int64_t *coordinate);

/* The ranks of a rank's group along a set of axes, "tp" or "dp,cp", ascending:
 * sets `size`, and the first `capacity` entries of `ranks`. */
tessera_status tessera_mesh_group(const tessera_mesh *mesh, int64_t rank,
                                  const char *axes, int64_t *ranks,
                                  int64_t capacity, int64_t *size);

/* ---- Communicators ------------------------------------------------------- */

typedef struct tessera_communicator tessera_communicator;

typedef int32_t tessera_reduction;
enum {
  TESSERA_SUM = 0,
  TESSERA_AVERAGE = 1, /* integers towards zero */
  TESSERA_PRODUCT = 2,
  TESSERA_MIN = 3,
  TESSERA_MAX = 4,
  TESSERA_BIT_AND = 6, /* bitwise reductions require integers */
  TESSERA_BIT_OR = 7,
  TESSERA_BIT_XOR = 8
};

/* Creates the communicators of `size` ranks of this process, one for a thread
 * each: communicators[0] to communicators[size - 1]. */
tessera_status tessera_communicators_create_in_process(
    int64_t size, tessera_communicator **communicators);

/* Joins the other ranks of a job. RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT
 * or the variables of mpirun or Slurm describe it; on several hosts
 * TESSERA_JOB_SECRET must be set. `engine`: "shared_memory", "gloo", "mpi";
 * NULL or "auto": shared memory within each host and Gloo between hosts. Waits
 * at most `timeout` seconds, which is also the longest duration of an
 * operation. */
tessera_status tessera_communicator_join(const char *engine, double timeout,
                                         tessera_communicator **communicator);

/* A collective: ranks that give the same `colour` form a new group, ordered by
 * `key`, then by rank; NULL for a negative colour. */
tessera_status tessera_communicator_split(tessera_communicator *communicator,
                                          int64_t colour, int64_t key,
                                          tessera_communicator **group);

/* Waits for running operations, then leaves the group. */
void tessera_communicator_destroy(tessera_communicator *communicator);

int64_t tessera_communicator_rank(const tessera_communicator *communicator);
int64_t tessera_communicator_size(const tessera_communicator *communicator);

/* Breaks the group: waiting calls of all ranks that can be reached return
 * ABORTED with `reason`. */
void tessera_communicator_abort(tessera_communicator *communicator,
                                const char *reason);

/* Operations block until their result is there. `input` and `output` may be
 * equal where the sizes are. INVALID_ARGUMENT if arguments are invalid or
 * differ between ranks; UNAVAILABLE or DEADLINE_EXCEEDED name dead or late
 * ranks. An error breaks the group. */

/* `count` elements of each rank. */
tessera_status tessera_all_reduce(tessera_communicator *communicator,
                                  const void *input, void *output,
                                  int64_t count, tessera_dtype dtype,
                                  tessera_reduction reduction);

/* `count` elements of output; the input has `count` for each rank. */
tessera_status tessera_reduce_scatter(tessera_communicator *communicator,
                                      const void *input, void *output,
                                      int64_t count, tessera_dtype dtype,
                                      tessera_reduction reduction);

/* `count` elements of input; the output has `count` of each rank. */
tessera_status tessera_all_gather(tessera_communicator *communicator,
                                  const void *input, void *output,
                                  int64_t count, tessera_dtype dtype);

/* Copies rank `root`'s `count` elements to all ranks. */
tessera_status tessera_broadcast(tessera_communicator *communicator, void *data,
                                 int64_t count, tessera_dtype dtype,
                                 int64_t root);

/* `count` elements from and for each rank. */
tessera_status tessera_all_to_all(tessera_communicator *communicator,
                                  const void *input, void *output,
                                  int64_t count, tessera_dtype dtype);

tessera_status tessera_barrier(tessera_communicator *communicator);

/* Messages between two ranks arrive in the order in which they are sent. */
tessera_status tessera_send(tessera_communicator *communicator,
                            const void *data, int64_t count,
                            tessera_dtype dtype, int64_t destination);
tessera_status tessera_receive(tessera_communicator *communicator, void *data,
                               int64_t count, tessera_dtype dtype,
                               int64_t source);

/* ---- Pipeline schedules -------------------------------------------------- */

/* Generates a schedule, such as "1f1b", and proves that it is complete and free
 * of deadlocks. `chunks`: stages of a rank, 1 for most generators. `csv`
 * receives PyTorch's table, one line per rank; the caller frees it.
 * INVALID_ARGUMENT lists the generators. */
tessera_status tessera_schedule_generate(const char *name, int64_t ranks,
                                         int64_t micro_batches, int64_t chunks,
                                         char **csv);

/* Simulates a table with the times of one stage's actions. Sets the duration
 * and the share of it during which the busiest rank idles. */
tessera_status tessera_schedule_simulate(const char *csv, double forward,
                                         double backward_input,
                                         double backward_weight,
                                         double *duration, double *bubble);

/* ---- The planner --------------------------------------------------------- */

/* Finds the fastest ways to train a model. `model`: a preset, "llama-7b", or a
 * directory with a config.json. `cluster`: "hosts=2,gpus=8,memory=80GB".
 * `batch`: sequences per step, 0: about four million tokens. `length`: tokens
 * of a sequence. `json` receives the report of `tessera plan --format=json`;
 * the caller frees it. */
tessera_status tessera_plan_find(const char *model, const char *cluster,
                                 int64_t batch, int64_t length, char **json);

/* ---- Checkpoints of the trainer ------------------------------------------ */

typedef struct tessera_checkpoint tessera_checkpoint;

/* Opens a checkpoint, or the newest complete one of a run's directory. */
tessera_status tessera_checkpoint_open(const char *path,
                                       tessera_checkpoint **checkpoint);
void tessera_checkpoint_destroy(tessera_checkpoint *checkpoint);

/* The steps of the run, and the number of tensors, which are sorted by name. */
int64_t tessera_checkpoint_steps(const tessera_checkpoint *checkpoint);
int64_t tessera_checkpoint_tensor_count(const tessera_checkpoint *checkpoint);

/* The name of a tensor, valid as long as the checkpoint; NULL if there is no
 * such index. */
const char *tessera_checkpoint_tensor_name(const tessera_checkpoint *checkpoint,
                                           int64_t index);

/* A tensor's type and shape: sets `rank`, 1 or 2, and that many entries of
 * `shape`. */
tessera_status tessera_checkpoint_tensor_shape(
    const tessera_checkpoint *checkpoint, const char *name,
    tessera_dtype *dtype, int64_t shape[2], int32_t *rank);

/* Reads all values of a tensor in row-major order, whatever the mesh of the run
 * was, and verifies their checksums. `bytes` must be their size. */
tessera_status tessera_checkpoint_read(tessera_checkpoint *checkpoint,
                                       const char *name, void *values,
                                       int64_t bytes);

#ifdef __cplusplus
}
#endif

#endif /* TESSERA_H_ */
