"""What was found, to be read: a document in markdown, LaTeX or as one HTML page that needs nothing else.

document   what a report says, before it has a form: sections of claims, tables, figures, facts
compared   the document of a comparison
markdown, latex, html   documents in their forms
markup, scale, marks    what figures are drawn with; curves, dots: the figures
"""
