/* {{NAME}}: a function of tensors, exported by Aster ML {{VERSION}}.
 *
 * Inputs, row-major, read only:
{{INPUTS}} * Outputs, row-major, written whole, with no byte in common with another argument:
{{OUTPUTS}} */
#ifndef {{GUARD}}
#define {{GUARD}}

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {{NAME}}_model {{NAME}}_model;

/* A model ready to run; {{WHENCE}}
 * NULL without memory, or where the file is not there or is not of this export. */
{{NAME}}_model *{{NAME}}_init({{PATH}});

/* Computes the outputs. {{KEPT}}
 * Returns 0, or 1 where there is no memory for {{ARENA}} bytes of temporaries. */
{{RUN}}

/* Gives back what {{NAME}}_init took; NULL is fine. */
void {{NAME}}_free({{NAME}}_model *model);

#ifdef __cplusplus
}
#endif

#endif
