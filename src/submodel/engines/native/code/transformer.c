/* The layers of transformers, one call for all clients of a stack; each client by itself.
 *
 * Built by build.py with net.c; called by operators.py and tape.py.
 */
#include "tape.h"
